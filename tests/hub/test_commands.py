"""`hexgraft hub`: devices, the account, and a bundle timed and compared on a hosted device."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import hub_http
import pytest
from command import error_of, hexgraft, last_error_of
from heads import write_head
from hub_http import TOKEN
from hub_service import Fault, HubServer, fail_once
from qai_hub import public_api_pb2 as pb
from tiny import write_tiny_hf

from hexgraft.host.bundle import open_bundle
from hexgraft.host.hub.book import work_folder
from hexgraft.host.hub.profile import spread_of
from hexgraft.host.hub.service import HostedDevice
from hexgraft.host.measure.profile import read_profile
from hexgraft.host.measure.table import LatencyTable

PHONE = ("--device", "Samsung Galaxy S24")


@pytest.fixture
def bundle(account: HubServer, tmp_path: Path) -> Path:
    """A tiny target that the stand-in compiled."""
    target = write_tiny_hf(tmp_path / "target")
    place = ("export", target, "-o", tmp_path / "b", "--widths", "1,8", "--context", "32")
    done = hexgraft(*place, "--via", "aihub", *PHONE)
    assert done.exit_code == 0, done.stderr
    return tmp_path / "b"


@pytest.fixture
def pair(account: HubServer, tmp_path: Path) -> Path:
    """A tiny pair that the stand-in compiled, at two capacities."""
    target = write_tiny_hf(tmp_path / "target")
    draft = write_tiny_hf(tmp_path / "draft", noise_of=target, noise=0.1)
    place = ("export", target, "--draft", draft, "-o", tmp_path / "b", "--widths", "1,8")
    done = hexgraft(*place, "--context", "32,64", "--via", "aihub", *PHONE)
    assert done.exit_code == 0, done.stderr
    return tmp_path / "b"


def test_login_check_says_whose_token_it_is(account: HubServer) -> None:
    assert hexgraft("hub", "login-check").stdout == f"ada@example.org at {account.config.api_url}\n"
    result = hexgraft("hub", "login-check", "--json")
    assert json.loads(result.stdout) == {"user": "ada@example.org", "service": account.config.api_url}
    assert TOKEN not in result.output  # the service's answer holds it


def test_login_check_without_a_token(tmp_path: Path) -> None:
    message, hint = error_of(hexgraft("hub", "login-check"))
    assert message == f"there is no AI Hub token: {tmp_path / 'nowhere.ini'} does not exist"
    assert hint == "put it into ~/.qai_hub/client.ini: qai-hub configure --api_token TOKEN"


def test_login_check_with_a_folder_for_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(tmp_path))
    message, hint = error_of(hexgraft("hub", "login-check"))
    assert message == f"there is no AI Hub token: {tmp_path} is a folder"
    assert hint == "let QAIHUB_CLIENT_INI name the client's file, or unset it"


def test_login_check_with_a_wrong_one(account: HubServer) -> None:
    account.faults.append(Fault("users/auth", 1, 401))
    message, _ = error_of(hexgraft("hub", "login-check"))
    assert message == "AI Hub does not take the token while looking up the account"


def test_devices_and_their_chips(account: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = hexgraft("hub", "devices").stdout
    assert [line.strip().split("  ")[0] for line in shown.splitlines()[1:]] == [
        "RB3 Gen 2",
        "Samsung Galaxy S24",
        "Samsung Galaxy S25",
        "Toaster of the Future",
    ]
    for words in ("SM8650", "V75", "Android 14", "SM8650 (Snapdragon 8 Gen 3, V75)"):
        assert words in shown
    said = json.loads(hexgraft("hub", "devices", "--chip", "Snapdragon 8 Elite", "--json").stdout)
    assert [(device["name"], device["soc"]) for device in said] == [("Samsung Galaxy S25", "SM8750")]
    assert "soc-model:69" in said[0]["attributes"]
    said = json.loads(hexgraft("hub", "devices", "--json").stdout)
    assert [device["soc"] for device in said] == ["SM8650", "SM8750", "QCS6490", None]


def test_profile_times_every_graph_and_writes_what_the_tuner_reads(
    pair: Path, account: HubServer, tmp_path: Path
) -> None:
    uploads = len(account.models)
    arguments = ("hub", "profile", pair, *PHONE, "-o", tmp_path / "phone.json", "--iterations", "7")
    done = hexgraft(*arguments)
    assert done.exit_code == 0, done.stderr
    jobs = account.of_kind("inference_job")
    assert len(jobs) == 2 * 2 * 2  # models, widths, capacities
    assert all(job.is_profiling_on for job in jobs)
    assert all("context_enable_graphs=QNNExecutionProvider_" in job.options for job in jobs)
    assert all(job.options.endswith(" --max_profiler_iterations 7") for job in jobs)
    assert len(account.models) == uploads  # the service has the binaries it made
    profile = read_profile(tmp_path / "phone.json")
    assert profile.source.kind == "hosted device"
    assert len(profile.source.citations) == 8
    assert profile.machine.name == "Samsung Galaxy S24"
    assert profile.machine.system == "Android 14"
    assert profile.machine.chip == "SM8650 (Snapdragon 8 Gen 3, V75)"
    assert profile.bundle == open_bundle(pair).digest
    assert profile.target.widths == [1, 8]
    assert profile.draft is not None
    times = {(each.width, each.fill): each.graph for each in profile.target.passes}
    assert set(times) == {(1, 0), (1, 31), (1, 32), (1, 63), (8, 0), (8, 24), (8, 25), (8, 56)}
    assert times[8, 0].median == pytest.approx(1082e-6)
    assert (times[8, 0].low, times[8, 0].count) == (pytest.approx(1081e-6), 5)
    assert LatencyTable(profile.target).seconds(5, 10) == pytest.approx(1082e-6)
    assert "1.08 (1.08 to 1.08)" in done.stdout
    (tmp_path / "prompts.txt").write_text("the fox\n", encoding="utf-8")
    foretold = ("tune", pair, "--profile", tmp_path / "phone.json", "--prompts", tmp_path / "prompts.txt")
    tuned = hexgraft(*foretold, "--drafters", "lookup", "--max-tokens", "4", "--json")
    assert tuned.exit_code == 0, tuned.stderr
    assert json.loads(tuned.stdout)
    again = hexgraft(*arguments, "--json")
    assert json.loads(again.stdout) == json.loads((tmp_path / "phone.json").read_text(encoding="utf-8"))
    assert len(account.of_kind("inference_job")) == 8
    assert again.stderr.count("of an earlier run is done") == 8


def test_figures_stay_those_of_the_system_they_were_taken_on(
    bundle: Path, account: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AI Hub lists the device with a newer system since; a second profile job each would be paid."""
    first = hexgraft("hub", "profile", bundle, *PHONE, "--json")
    newer = ("Samsung Galaxy S24", "15", 57, "v75", "sm8650", True)
    monkeypatch.setattr(hub_http, "DEVICES", (*hub_http.DEVICES, newer))
    again = hexgraft("hub", "profile", bundle, *PHONE, "--json")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert len(account.of_kind("inference_job")) == 2
    taken = "taking Samsung Galaxy S24 (Android 14), which has jobs of an earlier run, and not "
    assert f"{taken}Samsung Galaxy S24 (Android 15)" in again.stderr


def test_a_width_that_fails_is_left_out_of_a_profile(pair: Path, account: HubServer, tmp_path: Path) -> None:
    """At one capacity alone; the other figures are paid for, and of use."""
    account.fail_jobs["target_ar8_cl72"] = "device ran out of memory"
    done = hexgraft("hub", "profile", pair, *PHONE, "-o", tmp_path / "phone.json")
    assert done.exit_code == 1
    assert (
        done.stderr.count("left out: the profile job of target_ar8_cl72 failed on Samsung Galaxy S24: ") == 1
    )
    assert "its log is at" in done.stderr
    found = read_profile(tmp_path / "phone.json")
    assert (found.target.widths, found.draft.widths if found.draft else None) == ([1], [1, 8])
    assert {each.width for each in found.target.passes} == {1}
    assert LatencyTable(found.target).seconds(1, 10) == pytest.approx(1012e-6)
    account.fail_jobs["target_ar1"] = "it fell from the table"
    account.forget = {job.inference_job_id for job in account.of_kind("inference_job")}
    message, hint = last_error_of(hexgraft("hub", "profile", pair, *PHONE))
    assert "failed on Samsung Galaxy S24" in message
    assert "its log is at" in hint


@pytest.mark.parametrize("left", ["nothing", "an empty result"])
def test_figures_that_the_service_lost_are_measured_again(left: str, pair: Path, account: HubServer) -> None:
    """All of the target's, submitted again before the first is waited for, and one of the draft's."""
    arguments = ("hub", "profile", pair, *PHONE)
    assert hexgraft(*arguments).exit_code == 0
    first = [job.inference_job_id for job in account.of_kind("inference_job")]
    for job_id in first[:5]:
        del account.workshop.results[job_id]
        if left != "nothing":
            empty = pb.InferenceJobResult(inference_job_id=job_id)
            account.workshop.results[job_id] = pb.JobResult(inference_job_result=empty)
    account.seen.clear()
    again = hexgraft(*arguments, "--json")
    assert again.exit_code == 0, again.stderr
    said = [f"AI Hub has lost what job {job_id} gave, submitting it again" for job_id in first[:5]]
    assert [again.stderr.count(words) for words in said] == [1] * 5
    steps = [line for line in account.seen if line == "POST /api/v1/jobs/" or line.endswith("/result/")]
    posts = [step.startswith("POST") for step in steps]
    assert posts == [False] * 4 + [True] * 4 + [False] * 4 + [False] * 4 + [True, False]
    citations = json.loads(again.stdout)["source"]["citations"]
    told = {citation["address"].split("/")[-2] for citation in citations}
    assert told == {job.inference_job_id for job in account.of_kind("inference_job")} - set(first[:5])
    assert len(told) == 8


def test_a_width_that_fails_when_it_is_measured_again_is_left_out(
    bundle: Path, account: HubServer, tmp_path: Path
) -> None:
    assert hexgraft("hub", "profile", bundle, *PHONE).exit_code == 0
    account.workshop.results.clear()
    output = ("-o", tmp_path / "phone.json")
    done = fail_once(account, "target_ar8", "it fell", "hub", "profile", bundle, *PHONE, *output)
    assert done.stderr.count("left out: the profile job of target_ar8_cl40 failed on Samsung Galaxy S24") == 1
    assert read_profile(tmp_path / "phone.json").target.widths == [1]
    assert len(account.of_kind("inference_job")) == 4


def test_a_profile_is_shown_even_where_it_cannot_be_written(
    bundle: Path, account: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "phone.json"))

    monkeypatch.setattr("hexgraft.host.cli.hub.write_profile", full)
    done = hexgraft("hub", "profile", bundle, *PHONE, "-o", tmp_path / "phone.json")
    assert done.exit_code == 1
    assert "1.08 (1.08 to 1.08)" in done.stdout
    assert "the system refuses" in done.stderr


def test_a_device_says_its_own_system() -> None:
    assert HostedDevice("Samsung Galaxy S24", "14", ("os:android",)).system == "Android 14"
    assert HostedDevice("Snapdragon X Elite CRD", "11", ("os:windows",)).system == "Windows 11"
    assert HostedDevice("Something", "1").system == "1"


def test_a_draft_head_is_compiled_and_timed(account: HubServer, tmp_path: Path) -> None:
    target = write_tiny_hf(tmp_path / "target", layers=4)
    head = write_head(tmp_path / "head", target, rows=90, own_head=False)
    place = ("export", target, "--draft", head, "-o", tmp_path / "b", "--widths", "8", "--context", "32")
    done = hexgraft(*place, "--parity-rows", "0", "--via", "aihub", *PHONE)
    assert done.exit_code == 0, done.stderr
    done = hexgraft("hub", "profile", tmp_path / "b", *PHONE, "-o", tmp_path / "phone.json")
    assert done.exit_code == 0, done.stderr
    draft = read_profile(tmp_path / "phone.json").draft
    assert draft is not None
    assert draft.passes


def test_run_compares_three_passes_with_the_cpu(bundle: Path, account: HubServer) -> None:
    done = hexgraft("hub", "run", bundle, *PHONE, "--rows", "8", "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert [(row["pass"], row["width"], row["rows"]) for row in said["passes"]] == [
        ("prefill", 8, 8),
        ("decode", 1, 1),
        ("tree", 8, 7),
    ]
    assert all(0 < row["kl"] < 1e-3 and row["sqnr_db"] > 40 for row in said["passes"])
    assert said["missed"] == []
    jobs = account.of_kind("inference_job")
    assert not any(job.is_profiling_on for job in jobs)
    assert [job["job_id"] for job in said["jobs"]] == [job.inference_job_id for job in jobs]
    shown = hexgraft("hub", "run", bundle, *PHONE, "--rows", "8")
    assert shown.exit_code == 0
    assert "100.0%" in shown.stdout
    assert len(account.of_kind("inference_job")) == 3  # the very same passes are not paid for again


def test_passes_whose_outputs_the_service_lost_run_again(bundle: Path, account: HubServer) -> None:
    """AI Hub deletes data sets after a month, and keeps the jobs: none is taken for the one that goes for it,
    whose first submission it refuses."""
    assert hexgraft("hub", "run", bundle, *PHONE, "--rows", "8").exit_code == 0
    account.forget = set(list(account.datasets)[-1:])
    account.faults.append(Fault("POST /api/v1/jobs", 9, 503))
    done = hexgraft("hub", "run", bundle, *PHONE, "--rows", "8")
    assert done.exit_code == 0, done.stderr
    assert account.faults[0].times == 0
    jobs = account.of_kind("inference_job")
    assert len(jobs) == 4
    assert f"AI Hub has lost what job {jobs[2].inference_job_id} gave, submitting it again" in done.stderr


def test_a_job_that_cannot_be_submitted_has_lost_nothing(bundle: Path, account: HubServer) -> None:
    account.faults.append(Fault("POST /api/v1/jobs/", 1, 404))
    done = hexgraft("hub", "run", bundle, *PHONE, "--rows", "8")
    message, _ = last_error_of(done)
    assert message.startswith("AI Hub does not find what it needs for submitting hexgraft target_ar8_cl40")
    assert "has lost" not in done.stderr
    assert account.of_kind("inference_job") == []


def test_wrong_silicon_is_seen(bundle: Path, account: HubServer) -> None:
    """A device that computes nonsense fails the comparison, unless it is forced through."""
    account.workshop.distort = True
    done = hexgraft("hub", "run", bundle, *PHONE, "--rows", "8")
    assert done.exit_code == 1
    assert "misses the parity gate: " in done.stderr
    assert hexgraft("hub", "run", bundle, *PHONE, "--rows", "8", "--force").exit_code == 0


def test_a_local_bundle_is_uploaded_once(account: HubServer, tmp_path: Path) -> None:
    target = write_tiny_hf(tmp_path / "target")
    place = ("export", target, "-o", tmp_path / "b", "--widths", "8", "--context", "32", "--target", "htp")
    assert hexgraft(*place, "--soc", "SM8650", "--parity-rows", "0").exit_code == 0
    account.workshop.wrappers = list((tmp_path / "b").glob("target/htp/**/*.onnx"))
    for _ in range(2):
        done = hexgraft("hub", "run", tmp_path / "b", *PHONE, "--rows", "8")
        assert done.exit_code == 0, done.stderr
    (uploaded,) = account.models.values()
    assert (
        account.workshop.file(uploaded.model_id).read_bytes()
        == (tmp_path / "b" / "target/htp/sm8650/fp16/target_ar8_cl40.bin").read_bytes()
    )


def test_jobs_of_other_runs_are_not_told(bundle: Path, account: HubServer) -> None:
    told = []
    for rows in ("8", "4"):
        said = json.loads(hexgraft("hub", "run", bundle, *PHONE, "--rows", rows, "--json").stdout)
        told.append({job["job_id"] for job in said["jobs"]})
    assert [len(jobs) for jobs in told] == [3, 3]
    assert not told[0] & told[1]


def test_one_command_a_bundle(bundle: Path, account: HubServer) -> None:
    with work_folder(bundle):
        message, hint = error_of(hexgraft("hub", "run", bundle, *PHONE))
    assert message == f"another command uses the jobs of {bundle}"
    assert "wait for it" in hint


def test_a_failed_inference_job(bundle: Path, account: HubServer) -> None:
    account.fail_jobs["target_ar8"] = "device ran out of memory"
    message, hint = last_error_of(hexgraft("hub", "run", bundle, *PHONE, "--rows", "8"))
    assert message == (
        "the inference job of target_ar8_cl40 failed on Samsung Galaxy S24: device ran out of memory"
    )
    assert "/jobs/" in hint


@pytest.mark.parametrize("command", ["profile", "run"])
def test_what_cannot_be(command: str, bundle: Path, account: HubServer, tmp_path: Path) -> None:
    def refused(*arguments: str | Path) -> str:
        result = hexgraft("hub", command, *arguments)
        assert result.exit_code in (1, 2)
        return error_of(result)[0]

    assert "has no device 'Nokia'" in refused(bundle, "--device", "Nokia")
    assert "for SM8650 (V75), Samsung Galaxy S25 is V79" in refused(bundle, "--device", "Samsung Galaxy S25")
    assert "has no target graphs for SM8750" in refused(bundle, *PHONE, "--soc", "SM8750")
    assert "at w8a16" in refused(bundle, *PHONE, "--precision", "w8a16")
    plain = write_tiny_hf(tmp_path / "plain")
    assert hexgraft("export", plain, "-o", tmp_path / "cpu").exit_code == 0
    assert "has no target graphs for the NPU" in refused(tmp_path / "cpu", *PHONE)
    assert account.of_kind("inference_job") == []


def test_runs_of_parts_are_added_up_one_by_one() -> None:
    parts = [
        {"all_inference_times": [1000, 3000, 2000], "estimated_inference_time": 1000},
        {"all_inference_times": [100, 300, 200], "estimated_inference_time": 100},
    ]
    spread = spread_of(parts)
    assert spread.median == pytest.approx(2.2e-3)
    assert spread.count == 3
    parts[1]["all_inference_times"] = []
    assert spread_of(parts).median == pytest.approx(1.1e-3)
    assert spread_of(parts).count == 0
