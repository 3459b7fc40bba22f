"""Write the table of faults into the page of errors."""

from tests.faults.table import PAGE, page_with_table

PAGE.write_text(page_with_table(PAGE.read_text()))
