// step_schedule: names of operations, and the lane and track of each kind.

#include "offload/schedule/step_schedule.h"

#include <algorithm>
#include <array>

namespace longshore {
namespace {

struct KindTraits {
  std::string_view name;
  Lane lane;
};

// The entries are in the order of OpKind.
constexpr std::array<KindTraits, kOpKindCount> kKinds = {{
    {"read state", Lane::kRead},
    {"read parameters", Lane::kRead},
    {"read input", Lane::kRead},
    {"update", Lane::kUpdate},
    {"fetch", Lane::kH2D},
    {"gather", Lane::kGather},
    {"load input", Lane::kH2D},
    {"forward", Lane::kCompute},
    {"backward", Lane::kCompute},
    {"save input", Lane::kD2H},
    {"reduce", Lane::kReduce},
    {"drain", Lane::kD2H},
    {"write state", Lane::kWrite},
    {"write input", Lane::kWrite},
    {"commit", Lane::kWrite},
}};

constexpr std::array<std::string_view, kLaneCount> kLaneNames = {
    "read", "update", "h2d", "gather", "compute", "reduce", "d2h", "write"};

constexpr bool of_drives(Lane lane) {
  return lane == Lane::kRead || lane == Lane::kWrite;
}

// Returns the number of tracks that operations of the kind use in rotation.
constexpr int turns_of(OpKind kind) {
  return of_drives(kKinds[static_cast<size_t>(kind)].lane) && kind != OpKind::kCommit ? 2 : 1;
}

struct TrackTraits {
  Lane lane = Lane::kRead;
  OpKind kind = OpKind::kReadState;  // of a drive lane
  int turn = -1;                     // number of the track within its kind; -1: sole track
};

constexpr std::array<TrackTraits, kTrackCount> make_tracks() {
  std::array<TrackTraits, kTrackCount> tracks{};
  size_t count = 0;
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    if (!of_drives(static_cast<Lane>(lane))) {
      tracks[count++] = {.lane = static_cast<Lane>(lane), .turn = -1};
      continue;
    }
    for (size_t kind = 0; kind < kOpKindCount; ++kind) {
      if (kKinds[kind].lane != static_cast<Lane>(lane)) continue;
      for (int turn = 0; turn < turns_of(static_cast<OpKind>(kind)); ++turn) {
        tracks[count++] = {static_cast<Lane>(lane), static_cast<OpKind>(kind), turn};
      }
    }
  }
  return count == kTrackCount ? tracks : throw "kTrackCount";
}
constexpr std::array<TrackTraits, kTrackCount> kTracks = make_tracks();

// Returns the first track of the kind.
constexpr size_t first_track(OpKind kind) {
  const Lane lane = kKinds[static_cast<size_t>(kind)].lane;
  size_t track = 0;
  while (kTracks[track].lane != lane || (of_drives(lane) && kTracks[track].kind != kind)) ++track;
  return track;
}

}  // namespace

std::string_view name_of(Lane lane) {
  return kLaneNames[static_cast<size_t>(lane)];
}

std::string_view name_of(OpKind kind) {
  return kKinds[static_cast<size_t>(kind)].name;
}

std::string name_of(const Op& op, const ModelSpec& model) {
  const std::string name(name_of(op.kind));
  return op.kind == OpKind::kCommit ? name : name + " " + model.unit(op.unit).name;
}

std::vector<Placed> Op::placed() const {
  std::vector<Placed> placed;
  for (const Access& access : accesses) {
    if (access.resource.memory != Memory::kDeviceSlot) continue;
    placed.push_back({access.unit, DeviceSlot(access.resource.number)});
  }
  return placed;
}

bool is_output(const Op& op, const Access& access) {
  return access.resource.memory == Memory::kInputSlot && access.unit > op.unit;
}

std::vector<std::string> uses_of(const Op& op) {
  // By Memory.
  static constexpr std::array kNames = {"slot",  "gradient",   "host slot", "input",
                                        "state", "parameters", "staging"};
  std::vector<std::string> uses;
  for (const Access& access : op.accesses) {
    const Resource& used = access.resource;
    if (!is_slot(used.memory) || op.kind == OpKind::kCommit) continue;
    const char* name =
        is_output(op, access) ? "output" : kNames.at(static_cast<size_t>(used.memory));
    uses.push_back(name + (" " + std::to_string(used.number)));
  }
  return uses;
}

Lane lane_of(OpKind kind) {
  return kKinds[static_cast<size_t>(kind)].lane;
}

bool is_collective(OpKind kind) {
  return kind == OpKind::kGather || kind == OpKind::kReduce;
}

Lane lane_of_track(size_t track) {
  return kTracks.at(track).lane;
}

std::string name_of_track(size_t track) {
  const TrackTraits& traits = kTracks.at(track);
  if (traits.turn < 0) return std::string(name_of(traits.lane));
  if (turns_of(traits.kind) == 1) return std::string(name_of(traits.kind));
  return std::string(name_of(traits.kind)) + " " + std::to_string(traits.turn);
}

bool is_one_track(Lane lane) {
  return !of_drives(lane);
}

size_t TrackTurns::next(OpKind kind) {
  const auto turns = static_cast<size_t>(turns_of(kind));
  return first_track(kind) + count_[static_cast<size_t>(kind)]++ % turns;
}

std::vector<size_t> tracks_of(const StepSchedule& schedule) {
  TrackTurns turns;
  std::vector<size_t> tracks;
  for (const Op& op : schedule.ops) tracks.push_back(turns.next(op.kind));
  return tracks;
}

std::string describe_collectives(const PassSchedules& schedules) {
  std::string text;
  const auto add = [&text](const char* pass, const StepSchedule& schedule) {
    for (const Op& op : schedule.ops) {
      if (!is_collective(op.kind)) continue;
      text += std::string(pass) + ": " + std::string(name_of(op.kind)) + " unit " +
              std::to_string(op.unit.value) + "\n";
    }
  };
  add("train", schedules.train);
  add("first step", schedules.first);
  add("forward", schedules.forward);
  add("forward again", schedules.forward_again);
  return text;
}

std::string describe_op(const StepSchedule& schedule, int32_t index) {
  const Op& op = schedule.ops.at(static_cast<size_t>(index));
  std::string text = "op " + std::to_string(index) + " " + std::string(name_of(op.kind));
  if (op.kind != OpKind::kCommit) text += " unit " + std::to_string(op.unit.value);
  for (const std::string& use : uses_of(op)) text += " " + use;
  return text;
}

HappensBefore::HappensBefore(const StepSchedule& schedule) : tracks_(tracks_of(schedule)) {
  std::array<Clock, kTrackCount> by_track{};  // by track: clock of its last operation so far
  for (const Op& op : schedule.ops) {
    const size_t track = tracks_[clocks_.size()];
    Clock clock = by_track[track];
    for (int32_t before : op.after) {
      if (before < 0 || before >= static_cast<int32_t>(clocks_.size())) continue;
      const Clock& other = clocks_[static_cast<size_t>(before)];
      for (size_t i = 0; i < kTrackCount; ++i) clock[i] = std::max(clock[i], other[i]);
    }
    ++clock[track];
    by_track[track] = clock;
    clocks_.push_back(clock);
  }
}

bool HappensBefore::ordered(int32_t first, int32_t second) const {
  if (first == second) return false;
  const size_t track = tracks_.at(static_cast<size_t>(first));
  const Clock& mine = clocks_.at(static_cast<size_t>(first));
  return clocks_.at(static_cast<size_t>(second))[track] >= mine[track];
}

}  // namespace longshore
