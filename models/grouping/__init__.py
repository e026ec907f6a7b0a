"""Who belongs together: tables of evidence about clients, and rules that read one."""
