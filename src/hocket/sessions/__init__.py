"""One process at a time: starting, adopting, reading, messaging and stopping the runs that own a process."""
