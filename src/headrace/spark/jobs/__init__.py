"""The work that a data team does with a broker, as jobs that anybody can start: ``headrace pipeline run NAME``.

catalogue     what there is: options, and the tables each job writes with their declared schemas
run           what a job is given: a session, the broker, where to write, how to say how far it is
lake          tables on disk: one schema each, replaced as a whole; the archive with its manifest
report, plot  what a job says at its end: figures, tables, pictures, for a terminal and for a browser

The jobs are thin; what they compute is in ``headrace.spark.transforms``, functions from DataFrame to DataFrame.
"""

from headrace.spark.jobs.catalogue import JOBS, Job, Option, Table, find_job
from headrace.spark.jobs.report import Report
from headrace.spark.jobs.run import Run, run_job

__all__ = ["JOBS", "Job", "Option", "Report", "Run", "Table", "find_job", "run_job"]
