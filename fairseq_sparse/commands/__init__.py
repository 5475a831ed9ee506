"""The command ``fairseq-sparse``: one file a subcommand, of the same name; see ``cli``."""
