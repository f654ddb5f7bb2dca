"""How people and programs start hexpo: command line, library facade, testing kit."""
