#include "tests/fakes/store_lanes.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/number_formats.h"
#include "shard/shard_store.h"
#include "tests/fakes/segment_values.h"

namespace longshore::fakes {
namespace {

float value_of(UnitId unit, Segment segment, int64_t step, int64_t i) {
  const auto mixed = static_cast<uint32_t>((i + 1) * 2654435761 + 97 * unit.value +
                                           31 * static_cast<int>(segment));
  const int64_t of_step = segment == Segment::kFrozen ? 0 : step;
  return static_cast<float>(mixed % 100003u) * 1.0009765625f / 7.0f + static_cast<float>(of_step);
}

// Progress: how far each lane is; a lane waits for the count of another one.
class Progress {
 public:
  enum class Lane : uint8_t { kUpdate, kFetch, kCommit };

  void done(Lane lane) {
    {
      const std::lock_guard lock(mutex_);
      ++counts_[static_cast<size_t>(lane)];
    }
    changed_.notify_all();
  }
  // Waits until the lane has reached `count`; false if the run failed.
  bool wait(Lane lane, int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [&] { return counts_[static_cast<size_t>(lane)] >= count || !failure_.empty(); });
    return failure_.empty();
  }
  void fail(const std::string& text) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_.empty()) failure_ = text;
    }
    changed_.notify_all();
  }
  std::string failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<int64_t, 3> counts_{};
  std::string failure_;
};

using Lane = Progress::Lane;

class Lanes {
 public:
  Lanes(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t steps)
      : store_(store),
        layouts_(layouts),
        units_(static_cast<int32_t>(layouts.size())),
        steps_(steps) {}

  std::string run(const std::function<void(int64_t)>& after_updates) {
    std::thread update([this] { guard([this](int64_t step) { return update_pass(step); }); });
    std::thread fetch([this] { guard([this](int64_t step) { return fetch_passes(step); }); });
    guard([&](int64_t step) {
      if (!progress_.wait(Lane::kUpdate, step * units_)) return false;
      after_updates(step);
      progress_.done(Lane::kCommit);
      return true;
    });
    update.join();
    fetch.join();
    return progress_.failure();
  }

 private:
  void guard(const std::function<bool(int64_t)>& pass) {
    try {
      for (int64_t step = 1; step <= steps_; ++step) {
        if (!pass(step)) return;
      }
    } catch (const std::exception& error) {
      progress_.fail(error.what());
    }
  }

  // Returns the number of a unit's fetch in the backward pass of a step, counted from 1.
  int64_t backward_fetch(int64_t step, int32_t unit) const {
    return (step - 1) * 2 * units_ + units_ + (units_ - unit);
  }

  bool update_pass(int64_t step) {
    for (int32_t unit = 0; unit < units_; ++unit) {
      if (step > 1 && !progress_.wait(Lane::kFetch, backward_fetch(step - 1, unit))) return false;
      if (!progress_.wait(Lane::kCommit, step - 1)) return false;
      write_unit(store_, layouts_[static_cast<size_t>(unit)], UnitId(unit), step);
      progress_.done(Lane::kUpdate);
    }
    return true;
  }

  bool fetch_passes(int64_t step) {
    for (int32_t unit = 0; unit < units_; ++unit) {
      const int64_t updated = (step - 1) * units_ + unit + 1;
      if (!progress_.wait(Lane::kUpdate, updated)) return false;
      fetch(UnitId(unit), step);
    }
    for (int32_t unit = units_ - 1; unit >= 0; --unit) {
      fetch(UnitId(unit), step);
    }
    return true;
  }

  void fetch(UnitId unit, int64_t step) {
    const std::string difference =
        parameter_difference(store_, store_.parameters(unit)->bytes(),
                             layouts_[static_cast<size_t>(unit.value)], unit, step);
    if (!difference.empty()) progress_.fail(difference);
    progress_.done(Lane::kFetch);
  }

  ShardStore& store_;
  const std::vector<FlatLayout>& layouts_;
  int32_t units_;
  int64_t steps_;
  Progress progress_;
};

}  // namespace

void write_unit(ShardStore& store, const FlatLayout& layout, UnitId unit, int64_t step) {
  write_values_of(*store.state(unit), layout, unit, step);
}

void write_values_of(ShardStore::StateLease& state, const FlatLayout& layout, UnitId unit,
                     int64_t step) {
  std::vector<float> values;
  for (const Segment segment : kSegments) {
    const int64_t count = values_in_shard(layout, segment);
    if (count == 0 || (segment == Segment::kFrozen && step > 0)) continue;
    values.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(i)] = value_of(unit, segment, step, i);
    }
    const StateSpans spans = state.segment(segment);
    write_segment(spans, layout.compute(), 0, values);
    for (const MomentSpan& region : spans.regions) {
      std::ranges::fill(region.values, static_cast<std::byte>(step % 100));
    }
  }
}

std::string parameter_difference(const ShardStore& store, std::span<const std::byte> parameters,
                                 const FlatLayout& layout, UnitId unit, int64_t step) {
  size_t at = 0;
  for (const Segment segment : kSegments) {
    for (int64_t i = 0; i < values_in_shard(layout, segment); ++i, ++at) {
      const float value = value_of(unit, segment, step, i);
      const bool same =
          store.options().compute == DType::kF32
              ? reinterpret_cast<const float*>(parameters.data())[at] == value
              : reinterpret_cast<const uint16_t*>(parameters.data())[at] == master_high(value);
      if (same) continue;
      return "unit " + std::to_string(unit.value) + " at step " + std::to_string(step) +
             ": parameter " + std::to_string(at);
    }
  }
  const bool whole =
      at * static_cast<size_t>(width_of(store.options().compute)) == parameters.size();
  return whole ? "" : "unit " + std::to_string(unit.value) + ": bytes";
}

std::string run_lanes(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t steps,
                      const std::function<void(int64_t)>& after_updates) {
  return Lanes(store, layouts, steps).run(after_updates);
}

}  // namespace longshore::fakes
