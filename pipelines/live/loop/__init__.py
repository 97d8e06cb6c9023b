"""Control of a run: from the checks before its start to the summary after its end.

lifecycle        `run`: the stages of a run, in order; `start_over`
preflight        what is checked before anything is started: lock, disk, ranks
continuation     whether a run directory's run continues under a config, and what is announced
provision        broker, Ray, topics and lake, made ready for the workers
embedded_broker  a broker of the run's own, restarted when it dies
lake_watch       the lake of another run that this one follows: linked, looked at, its rows kept
worker_spec      the workers that a config asks for, and how each is built in its process
live_run         the loop: poll workers, reconcile students, decide, act, show
supervised       one worker and all: started, polled, restarted, killed when it hangs, closed
reconciler       changes that bring a run in line with its roster: students that are to join, pause or leave
monitor          alarms and idleness, from what changes in the status of a run between two checks
measures         disk use of a run
conclusion       summary, picture and MLflow, once every worker is done
signals          what Ctrl-C and SIGTERM do
"""
