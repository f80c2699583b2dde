import pytest

from fanin.trainer.schedule import UpdateSchedule


@pytest.mark.parametrize(
    ("share", "fraction"), [(0, 0.3), (1 / 4, 0.25607), (1 / 2, 0.15), (3 / 4, 0.04393), (1, 0.0)]
)
def test_drop_fraction_follows_the_cosine(share, fraction):
    schedule = UpdateSchedule(total_steps=4000, alpha=0.3)
    step = int(share * schedule.end_step)
    assert schedule.drop_fraction(step) == pytest.approx(fraction, abs=6e-6)


def test_updates_come_every_delta_t_strictly_between_0_and_t_end():
    schedule = UpdateSchedule(total_steps=1000, update_every=50)
    updates = [step for step in range(1001) if schedule.is_update_step(step)]
    assert schedule.end_step == 750
    assert updates == list(range(50, 750, 50))


def test_gradient_window_is_the_last_steps_up_to_the_update():
    schedule = UpdateSchedule(total_steps=40, update_every=10, gradient_window=3)
    window = [step for step in range(1, 41) if schedule.in_gradient_window(step)]
    assert window == [8, 9, 10, 18, 19, 20]  # 30 is T_end


def test_window_of_one_step_is_the_update_step_itself():
    schedule = UpdateSchedule(total_steps=40, update_every=10)
    assert [s for s in range(1, 41) if schedule.in_gradient_window(s)] == [10, 20]


def test_window_as_long_as_the_interval_covers_every_step_before_the_last_update():
    schedule = UpdateSchedule(total_steps=20, update_every=5, gradient_window=5)
    assert [s for s in range(1, 21) if schedule.in_gradient_window(s)] == list(range(1, 11))


def test_schedule_without_any_update_is_refused():
    with pytest.raises(ValueError, match="no topology update would ever happen"):
        UpdateSchedule(total_steps=100, update_every=75)
    assert UpdateSchedule(total_steps=100, update_every=74).is_update_step(74)


@pytest.mark.parametrize(
    "wrong",
    [
        {"total_steps": 0},
        {"update_every": 0},
        {"end_fraction": 0.0},
        {"end_fraction": 1.1},
        {"alpha": -0.1},
        {"alpha": 1.5},
        {"gradient_window": 0},
        {"gradient_window": 101},
    ],
)
def test_values_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        UpdateSchedule(**{"total_steps": 10_000} | wrong)
