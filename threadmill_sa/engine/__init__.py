"""What happens in a process that runs jobs. It knows stores by their contract only."""
