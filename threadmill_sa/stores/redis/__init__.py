"""The store on Redis or Valkey: every change is one script, every key lies in one hash slot."""
