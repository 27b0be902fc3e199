"""Teams: what the leads of teams, their teammates and their shared tasks do, by the files of their CLI."""
