"""What each project's cleaning makes of a record: one pure function a project."""
