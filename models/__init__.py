"""What is learned and how it is computed: no orchestration, no tracking, no files."""
