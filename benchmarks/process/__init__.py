"""What a process does to engines: memory over many steps and engines (``soak``), and runs that are
killed or interrupted at random moments (``kills``)."""
