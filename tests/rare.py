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
    *(
        f"tests/lab/test_cli.py::test_{name}"
        for name in ("a_charm_lives", "every_command", "wrong_use_of_a_lab")
    ),
    "tests/lab/test_vendors.py",
    # functional/test_gpu_run.py, unit/test_gpu_run.py, unit/test_gpu_run_door.py.
    "tests/functional/test_gpu_run_doors.py",
    "tests/functional/test_gpu_run_storm.py",
    "tests/lab/test_gpu_run.py",
    *(
        f"tests/functional/test_gpu_run.py::test_{name}"
        for name in ("who_ends", "what_cannot", "which", "a_job", "what_a_runner", "a_cron")
    ),
    # The stand-ins; so do all tests of a lab.
    "tests/functional/test_concourse_standin.py",
    "tests/functional/test_fakes_machine.py",
    # Owners, hooks that are killed, units that come and go: test_walk.py,
    # unit/test_lifecycle_machine_claim.py, unit/test_charm_owner.py.
    "tests/functional/test_ownership_machine.py",
    "tests/functional/test_concourse_machine.py",
    # unit/test_concourse_web_files.py, unit/test_concourse_web_tls.py,
    # unit/test_concourse_web_database.py.
    "tests/functional/test_concourse_web_machine.py",
    "tests/lab/test_all_in_one.py",
    # functional/test_concourse_machine.py, unit/test_charm_relations.py.
    "tests/lab/test_two_webs.py",
    # functional/test_backup.py, functional/test_backup_faults.py.
    "tests/lab/test_backup.py",
    # functional/test_concourse_web_machine.py, unit/test_concourse_web_database.py.
    "tests/lab/test_database.py",
    # No code of the charm is in it: what its page says to nginx, HAProxy and Caddy.
    "tests/functional/test_reverse_proxy.py",
    # lab/test_two_webs.py::test_no_secret_shows, functional/test_concourse_web_machine.py.
    "tests/lab/test_secrets.py",
    "tests/lab/test_lifecycle.py::test_a_hook_killed",
    "tests/lab/test_lifecycle.py::test_a_second_run",
    "tests/lab/test_lifecycle.py::test_a_unit_is_added",
    "tests/lab/test_lifecycle.py::test_a_build_lives_through_new_tags",
    "tests/lab/test_lifecycle.py::test_restarts_do_not_pile_up_mounts",
    "tests/lab/test_lifecycle.py::test_web_forgets_a_worker",
    "tests/lab/test_lifecycle.py::test_web_restarts_and_the_worker_comes_back",
    # Of versions of one layout: test_lifecycle.py, functional/test_agent_install.py.
    "tests/lab/test_layout_refresh.py",
    "tests/lab/test_addresses.py",
    # The rest of test_drain.py, unit/test_charm_drain.py.
    "tests/lab/test_drain.py::test_resume_under_the_build",
    "tests/lab/test_drain.py::test_units",
    # What breaks around a build: test_lifecycle.py, test_watch.py.
    "tests/lab/test_outages.py",
    "tests/lab/test_release.py",
    # What a step sees of its worker: functional/test_runtime_task_mounts.py, test_lifecycle.py.
    "tests/lab/test_task_world.py",
    "tests/lab/test_restart.py::test_nobody_gets_into",
    "tests/lab/test_restart.py::test_a_build_lives_though",
    # Driver, toolkit, their archives and packages, services and what the charm sets on a machine:
    # unit/test_host_nvidia_driver*.py, unit/test_host_nvidia_toolkit.py, unit/test_machine_*.py.
    "tests/lab/test_bare.py",
    "tests/functional/test_machine_systemd.py",
    *(
        f"tests/functional/test_concourse_worker_watchdog.py::test_{name}"
        for name in ("a_worker_that", "it_goes_and", "one_that_is")
    ),
    "tests/functional/test_machine_packages.py",
    "tests/functional/test_machine_repositories.py",
    "tests/functional/test_host_kernel_settings.py",
    "tests/functional/test_driver_upgrade.py",
    "tests/functional/test_host_nvidia_driver.py",
    "tests/functional/test_host_nvidia_toolkit.py",
    # The self-test's service, its code and its environment: lab/test_selftest.py,
    # unit/test_selftest_service.py, unit/test_agent_install.py, test_selftest_compute.py.
    "tests/functional/test_selftest_service.py",
    "tests/functional/test_agent_install.py",
    "tests/unit/test_agent_install.py::test_killed_at_any_step",
    "tests/functional/test_selftest_environment.py",
    "tests/functional/test_selftest_burnin.py::test_faults_under_load",
    "tests/functional/test_notifier_device_watch.py::test_no_hook_waits",
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
    *(
        f"tests/functional/test_selftest_isolation.py::test_{name}"
        for name in (
            *(
                "a_container_that_comes_late",
                "a_gpu_without_its_node",
                "a_self_test_that_is_stopped",
            ),
            *("after_a_killed_self_test", "each_mig_device", "in_a_container_the_user_namespace"),
            *("other_makers_gpus", "quarantined_gpus", "shared_gpus"),
            *(
                "a_sabotage_turns_its_own_checks_red[passes",
                "a_sabotage_turns_its_own_checks_red[forgets",
            ),
        )
    ),
    "tests/functional/test_engines_unit.py",
    "tests/functional/test_engine_doors.py",
    # podman's and Docker's containers: the rest of that file,
    # unit/test_gpu_runtime_engine_*.py.
    *(
        f"tests/functional/test_engines.py::test_{name}"
        for name in (
            *("a_device_is", "a_lease_lasts", "a_mount_of_null", "a_p"),
            *("docker", "it_is_", "podmans_cdi"),
            *("who_names", "who_waits"),
        )
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
    "tests/functional/test_runtime_install.py::test_killed_at_any_step",
    # That the model of leases would see a breach; that there is none: the rest of that file.
    "tests/unit/test_gpu_runtime_leases.py::test_the_model_sees_each_breach",
    "tests/unit/test_gpu_runtime_leases_kinds.py::test_the_model_sees_each_breach",
    # Attacks like others that stay in make test, by another way in.
    *(
        f"tests/attacks/test_denial.py::test_{name}"
        for name in (
            *("a_program_whose_crash", "a_start_and_a_process_that_never_come_to_an_end"),
            *(
                "an_image_with_files_that_hang",
                "small_wishes_without_end",
                "what_a_job_does_to_itself",
            ),
        )
    ),
    *(
        f"tests/attacks/test_kept.py::test_{name}"
        for name in (
            *(
                "a_chain_of_processes",
                "a_descriptor_planted",
                "a_descriptor_that_another_task_takes_from",
            ),
            "three_thousand_processes",
        )
    ),
    "tests/attacks/test_secrets.py::test_escapes_in_what_a_refusal_repeats",
    "tests/attacks/test_storm.py",
    *(
        f"tests/attacks/test_widened.py::test_{name}"
        for name in (
            "a_task_with_the_folder",
            "mounts_that_ask_for_devices",
            "odd_forms",
            "ten_thousand",
        )
    ),
    # functional/test_nested_leases.py, unit/test_gpu_runtime_nested.py;
    # a task of more than a minute.
    "tests/lab/test_nested.py::test_a_long_task",
    # The watch on a whole worker, for as long as its polls take: functional/test_health_*.py and
    # unit/test_health_*.py.
    "tests/lab/test_watch.py",
    "tests/lab/test_health_faults.py",
    *(
        f"tests/functional/test_health_service.py::test_{name}"
        for name in (
            *("a_driver_that_hangs", "who_stands_still", "what_a_full_disk", "what_has_changed"),
            *("while_jujus_lock", "it_ends_with", "where_it_only_observes"),
        )
    ),
    "tests/soak/test_health_storm.py",
    # All who use GPUs at once: functional/test_engines.py, test_gpu_run.py, test_leases_*.py.
    "tests/soak/test_line_storm.py",
    # Restarts under load, again and again: lab/test_restart.py,
    # unit/test_concourse_lossless_restart.py.
    "tests/soak/test_restart_storm.py",
    "tests/functional/test_gpu_reset.py",
    "tests/functional/test_concourse_key_rotation.py",
    "tests/lab/test_keys.py",
)
