"""Records as each project cleans them: one pure function a project."""
