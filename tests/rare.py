# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which tests `make test` leaves to `make rare`, which takes as long again.

Each is a rarer case, on a machine of its own or with many hooks, of what a test of `make test`
walks: the room's main path by another file, or its decisions without a machine.
"""

# Beginnings of test names. `.ci/run` runs both.
RARE = (
    # The lab itself; test_cli.py and all that use a lab walk it.
    *(f"tests/lab/test_juju_{name}.py" for name in ("commands", "machines", "semantics")),
    "tests/lab/test_bare_machine.py",
    "tests/lab/test_machines.py",
    "tests/lab/test_kernel_log.py",
    *(f"tests/lab/test_cli.py::test_{name}" for name in ("every_command", "wrong_use_of_a_lab")),
    # The stand-ins; so do all tests of a lab.
    "tests/functional/test_concourse_standin.py",
    "tests/functional/test_fakes_machine.py",
    # Owners, hooks that are killed, units that come and go: test_walk.py, unit/test_host_owner.py,
    # unit/test_charm_owner.py.
    "tests/functional/test_owner_machine.py",
    "tests/functional/test_ci_machine.py",
    "tests/lab/test_all_in_one.py",
    "tests/lab/test_lifecycle.py::test_a_hook_killed",
    "tests/lab/test_lifecycle.py::test_a_second_run",
    "tests/lab/test_lifecycle.py::test_a_unit_is_added",
    "tests/lab/test_addresses.py::test_an_address_that_the_operator_names",
    # Driver, toolkit, their archives and packages, what the charm sets on a machine:
    # lab/test_bare.py, unit/test_host_driver*.py, unit/test_host_toolkit.py.
    "tests/functional/test_machine_packages.py",
    "tests/functional/test_machine_repositories.py",
    "tests/functional/test_host_extra_packages.py",
    "tests/functional/test_host_settings.py",
    "tests/functional/test_driver_upgrade.py",
    "tests/functional/test_host_driver.py",
    "tests/functional/test_host_toolkit.py",
    "tests/lab/test_bare.py::test_a_vulnerable_toolkit",
    # The self-test's service, its code and its environment: lab/test_selftest.py,
    # unit/test_selftest_service.py, unit/test_machine_app.py, test_selftest_compute.py.
    "tests/functional/test_selftest_service.py",
    "tests/functional/test_machine_app.py",
    "tests/functional/test_selftest_environment.py",
    "tests/functional/test_benchmarks.py::test_each_runs",
    # Levels, faults, cordons by a whole worker: the rest of test_selftest.py, and
    # test_selftest_isolation.py, unit/test_actions_cordon.py.
    *(
        f"tests/lab/test_selftest.py::{name}"
        for name in (
            "test_a_driver_that_fits_no_more",
            "test_a_gpu_is_taken_out_and_brought_back_by_hand",
            "test_a_sick_gpu_leaves_the_pool",
            "test_at_boot_a_sick_gpu",
            "test_what_only_containers_show",
        )
    ),
    "tests/functional/test_selftest_isolation.py::test_a_container_that_comes_late",
    "tests/functional/test_selftest_isolation.py::test_in_a_container_the_user_namespace",
    *(
        f"tests/functional/test_selftest_isolation.py::test_a_sabotage_turns_its_own_checks_red[{it}"
        for it in ("passes", "forgets")
    ),
    # Options and events one by one: the rest of these files, and unit/test_charm*.py.
    "tests/lab/test_actions.py::test_actions_answer",
    "tests/lab/test_actions.py::test_lost_keys_of_web",
    "tests/lab/test_leases.py::test_a_task_opens_the_nodes_of_its_amd_gpu",
    "tests/lab/test_leases.py::test_switching_gpus_off_and_on",
    "tests/lab/test_leases.py::test_without_a_limit",
    "tests/lab/test_walk.py::test_a_failing_driver_blocks_with_the_remedy_and_jobs_go_on[fault1",
    "tests/lab/test_walk.py::test_a_failing_driver_blocks_with_the_remedy_and_jobs_go_on[fault2",
    "tests/lab/test_walk.py::test_a_lost_gpu",
    "tests/lab/test_walk.py::test_an_image_that_asks_for_all",
    "tests/lab/test_walk.py::test_an_index_keeps_its_card",
    "tests/lab/test_bare.py::test_giving_up_the_gpus",
    "tests/functional/test_wrapper_install.py::test_killed_at_any_step",
    "tests/attacks/test_denial.py::test_a_start_and_a_process_that_never_come_to_an_end",
    "tests/attacks/test_denial.py::test_small_wishes_without_end",
    "tests/attacks/test_storm.py",
    "tests/attacks/test_widened.py::test_odd_forms",
    "tests/attacks/test_widened.py::test_ten_thousand",
)
