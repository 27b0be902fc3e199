"""The registry of a project: files in which programs that know nothing of Hocket see its runs."""
