"""What people look at, folded from events and records: pure functions and values that every interface shares."""
