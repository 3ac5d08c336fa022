"""Authentication, rights and open places."""
