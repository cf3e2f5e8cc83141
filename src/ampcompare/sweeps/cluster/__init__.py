"""A sweep as a job array: no database, no worker that lives on. What there is are files and the queue."""
