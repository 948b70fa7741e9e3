"""An order desk with a transactional outbox: the library's main job, on real processes.

`desk` is the business, `producer` and `relay` are the two sides of it, each in processes of its
own; the rest starts, watches and judges them.
"""
