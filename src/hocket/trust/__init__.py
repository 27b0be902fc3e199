"""Permissions: the user's approvals, the privileges a definition asks for, and limits on delegation."""
