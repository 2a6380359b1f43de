"""Line ends of tables and logs; and tables of runs, which are no logs."""

import pytest

from flatline.errors import TraceError
from flatline.trace.importers import open_log
from flatline.trace.importers.several import logs_in
from tests.log_files import refusal, written


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize(("name", "rows"), [
    ("log.csv", ["step,reward", "1,0.5", "2,0.25"]),
    ("log.tsv", ["step\treward", "1\t0.5", "2\t0.25"]),
    ("log", ["step,reward", "1,0.5", "2,0.25"]),
    ("log.jsonl", ['{"step":1,"reward":0.5}', '{"step":2,"reward":0.25}']),
    ("log.json", ["[", '{"step":1,"reward":0.5},', '{"step":2,"reward":0.25}', "]"]),
    ("log.txt", [f"step:{at} - loss:0.1 - kl:0.1 - reward:{0.5 / at}" for at in (1, 2)]),
])  # fmt: skip
def test_any_line_end_ends_a_line(tmp_path, name, rows, end):
    for text in (end.join(rows), end.join(rows) + end):
        path = written(tmp_path, name, text.encode())
        assert logs_in(str(path)) == [str(path)]
        trace = open_log(path)
        assert trace.steps["reward"].tolist() == [0.5, 0.25]
        assert trace.warnings == []


def test_a_table_whose_line_ends_are_mixed_is_read(tmp_path):
    path = written(tmp_path, "log.csv", b"step,reward\r1,0.5\n2,0.25\r\n")
    assert open_log(path).steps["reward"].tolist() == [0.5, 0.25]
    path = written(tmp_path, "log.jsonl", b'{"step":1,"reward":0.5}\r{"step":2,"reward":0.25}\n')
    assert open_log(path).steps["reward"].tolist() == [0.5, 0.25]


def test_a_progress_bar_that_is_drawn_over_itself_is_no_row_each_time(tmp_path):
    bars = "\r".join(f"{at}% | loss=0.{at}, reward=0.{at}, kl=0.{at}]" for at in range(9))
    rows = "".join(f"{bars}\nstep:{at} - loss:0.1 - kl:0.1 - reward:0.5\n" for at in (1, 2, 3))
    trace = open_log(written(tmp_path, "log.txt", rows))
    assert trace.steps["step"].tolist() == [1, 2, 3]


def test_a_header_that_no_table_can_have_is_no_traceback(tmp_path):
    path = written(tmp_path, "log.csv", "step,reward" + "d" * 200_000 + "\n1,2\n")
    assert logs_in(str(path)) == [str(path)]
    with pytest.raises(TraceError):
        open_log(path)


RUNS = {
    "w&b": '"Name","State","Notes","User","Created","Runtime","Sweep","beta","train/reward"\n'
    '"grpo-a","finished","","me","2025-09-01T10:00:00.000Z","3600","","0.04","0.41"\n'
    '"grpo-b","crashed","","me","2025-09-02T10:00:00.000Z","120","","0.0","0.38"\n',
    "w&b, one name": "Name,State,Created,Runtime,reward,global_step\n"
    "grpo,finished,2025-09-01,3600,0.4,100\ngrpo,failed,2025-09-02,60,0.3,200\n",
    "w&b, few columns": "Name,State,reward\na,finished,0.4\nb,running,0.3\n",
    "w&b, no state": "Name,Created,Runtime,reward\na,2025-09-01,3600,0.4\n",
    "w&b's client": ",summary,config,name\n0,{'reward': 0.4},{'lr': 1},a\n1,{'reward': 0.3},{},b\n",
    "mlflow": "run_id,experiment_id,status,start_time,metrics.reward\n"
    "ab12,0,FINISHED,2025-09-01,0.4\ncd34,0,FAILED,2025-09-02,0.3\n",
    "mlflow's page": "Start Time,Duration,Run ID,Name,User,Status,reward\n"
    "2025-09-01,1h,ab12,a,me,FINISHED,0.4\n2025-09-02,1h,cd34,b,me,RUNNING,0.3\n",
}


@pytest.mark.parametrize("content", RUNS.values(), ids=RUNS)
def test_a_table_of_runs_is_no_log_and_what_to_export_is_said(tmp_path, content):
    said = refusal(written(tmp_path, "runs.csv", content))
    assert "a table of runs" in said
    assert "line 2 is" in said
    assert "scan_history" in said and "mlflow:" in said


@pytest.mark.parametrize("rows", [
    "run,state,created,step,reward\na,running,10:00,1,0.5\na,running,10:01,2,0.25\n",
    "name,runtime,step,reward\na,3,1,0.5\na,6,2,0.25\n",
    "name,state,step,reward\nfirst,warming up,1,0.5\nsecond,training,2,0.25\n",
    "step,reward,status,created\n1,0.5,running,10:00\n2,0.25,finished,10:01\n",
])  # fmt: skip
def test_a_log_that_writes_its_run_into_every_row_is_still_one_of_steps(tmp_path, rows):
    assert list(open_log(written(tmp_path, "log.csv", rows)).steps["reward"]) == [0.5, 0.25]
