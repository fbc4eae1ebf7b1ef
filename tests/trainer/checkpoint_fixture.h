// Fixtures of the checkpoint tests: a small model, its state in a store with known bits, and
// comparisons of whole states.
#pragma once

#include <array>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/number_formats.h"
#include "base/random.h"
#include "pinned/pinned_store.h"
#include "shard/shard_store.h"
#include "tests/fakes/sweep_in_order.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/run/run_checkpoints.h"

namespace longshore {

inline ParamSpec parameter(const std::string& name, std::vector<int64_t> shape) {
  ParamSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  return spec;
}

inline UnitSpec unit(int32_t id, std::vector<ParamSpec> parameters) {
  UnitSpec spec;
  spec.id = UnitId(id);
  spec.name = "unit." + std::to_string(id);
  spec.parameters = std::move(parameters);
  return spec;
}

// Returns a model with matrices of odd shapes, small parameters and a frozen one, in three units.
inline ModelSpec three_unit_spec() {
  ParamSpec fixed = parameter("fixed.weight", {40, 120});
  fixed.frozen = true;
  ModelSpec spec;
  spec.units = {unit(0, {parameter("embed.weight", {257, 24})}),
                unit(1, {parameter("norm.weight", {24}), parameter("up.weight", {90, 71}), fixed,
                         parameter("up.bias", {90}), parameter("down.weight", {64, 80})}),
                unit(2, {parameter("head.norm", {24}), parameter("head.weight", {257, 24})})};
  return spec;
}

// Returns the same parameters in two units and another order.
inline ModelSpec two_unit_spec() {
  const std::vector<UnitSpec> three = three_unit_spec().units;
  const std::vector<ParamSpec>& block = three[1].parameters;
  std::vector<ParamSpec> second = three[2].parameters;
  second.insert(second.end(), {block[2], three[0].parameters[0], block[0]});
  ModelSpec spec;
  spec.units = {unit(0, {block[3], block[1], block[4]}), unit(1, second)};
  return spec;
}

// The kinds of state, in the order in which the functions below number them.
inline const std::array<std::string, 3> kKinds = {kMasterKind, "exp_avg", "exp_avg_sq"};

// Returns the bits of a value of the state: any pattern but NaN (a copy may quieten a NaN).
inline float state_bits(const std::string& parameter, size_t kind, int64_t element,
                        uint32_t version) {
  const auto name = static_cast<uint32_t>(std::hash<std::string>{}(parameter));
  const auto words =
      philox4x32({static_cast<uint32_t>(element), static_cast<uint32_t>(kind), name, version},
                 PhiloxKey{1, 2});
  const float value = std::bit_cast<float>(words[0]);
  return value != value ? 1.5f : value;
}

// RankState: one rank's store of a model.
class RankState {
 public:
  RankState(ModelSpec spec, StateOptions options, int32_t ranks = 1, int32_t rank = 0)
      : spec_(std::move(spec)),
        layouts_(make_layouts(spec_, ranks, options.compute)),
        rank_(rank),
        store_(layouts_, options, false, &pool_) {}

  ShardedModel model() const { return {spec_, layouts_, rank_}; }
  ShardStore& store() { return store_; }
  StateSweep sweep() { return sweep_in_order(store_, spec_); }
  const ModelSpec& spec() const { return spec_; }

  void fill(uint32_t version = 0) {
    visit([&](const ParamSpec& parameter, const ShardPiece& piece, const StateSpans& state) {
      for (int64_t i = 0; i < piece.elements; ++i) {
        const int64_t element = piece.parameter_begin + i;
        const auto at = static_cast<size_t>(piece.shard_begin + i);
        const auto bits = [&](size_t kind) {
          return state_bits(parameter.name, kind, element, version);
        };
        const float master = bits(0);
        write_values(state, piece.shard_begin + i, std::span(&master, 1));
        if (state.regions[0].empty()) continue;
        state.regions[0].f32()[at] = bits(1);
        state.regions[1].f32()[at] = bits(2);
      }
    });
  }

  // Sets the masters only, in any state format.
  void fill_masters() {
    visit([](const ParamSpec& parameter, const ShardPiece& piece, const StateSpans& state) {
      for (int64_t i = 0; i < piece.elements; ++i) {
        const float master = state_bits(parameter.name, 0, piece.parameter_begin + i, 0);
        write_values(state, piece.shard_begin + i, std::span(&master, 1));
      }
    });
  }

  // Returns every difference to `fill(version)`, as "<parameter> <kind> <element>".
  std::vector<std::string> differences(uint32_t version = 0) {
    std::vector<std::string> found;
    visit([&](const ParamSpec& parameter, const ShardPiece& piece, const StateSpans& state) {
      if (parameter.frozen) return;
      std::vector<float> masters(static_cast<size_t>(piece.elements));
      read_values(state, piece.shard_begin, masters);
      for (int64_t i = 0; i < piece.elements; ++i) {
        const auto at = static_cast<size_t>(piece.shard_begin + i);
        const float master = masters[static_cast<size_t>(i)];
        const std::array<float, 3> values = {master, state.regions[0].f32()[at],
                                             state.regions[1].f32()[at]};
        for (size_t kind = 0; kind < kKinds.size(); ++kind) {
          const int64_t element = piece.parameter_begin + i;
          const float wanted = state_bits(parameter.name, kind, element, version);
          const float got = values[kind];
          if (std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(wanted)) continue;
          found.push_back(parameter.name + " " + kKinds[kind] + " " + std::to_string(element));
        }
        const bool high_follows = state.high.empty() || state.high[at] == master_high(master);
        if (!high_follows) found.push_back(parameter.name + " high");
      }
    });
    return found;
  }

  template <typename UnitExecution>
  void visit(UnitExecution visit_piece) {
    for (const UnitSpec& unit : spec_.units) {
      const auto lease = store_.state(unit.id);
      const FlatLayout& layout = layouts_[static_cast<size_t>(unit.id.value)];
      for (const ShardPiece& piece : layout.trained_pieces(rank_)) {
        visit_piece(unit.parameters[static_cast<size_t>(piece.parameter)], piece,
                    lease->segment(piece.segment));
      }
    }
  }

 private:
  ModelSpec spec_;
  std::vector<FlatLayout> layouts_;
  Rank rank_;
  WorkerPool pool_{1};
  PinnedStore store_;
};

inline RunProgress progress_at(int64_t step) {
  RunProgress progress;
  progress.step = Step(step);
  progress.adam_step = step - 1;
  progress.skipped_total = 1;
  progress.seed = 42;
  progress.data = {.cursor = {.seed = 42, .epoch = 2, .position = step * 8},
                   .sequences = step * 8 + 5,
                   .fingerprint = 0x1234};
  progress.model_fingerprint = "0123456789abcdef";
  progress.router_corrections = {0.1F, -0.0F, 64.000008F};
  progress.config_text = "[run]\ndir = \"runs/\u00e4\"\n";
  return progress;
}

// Makes the world of one rank.
inline std::unique_ptr<World> alone() {
  return World::connect({}, {});
}

inline SavedCheckpoint save(const std::string& folder, RankState& state, int64_t step,
                            int64_t keep = 100) {
  return save_checkpoint(folder, keep, progress_at(step), state.model(), state.sweep(), *alone(),
                         RankGroups{});
}

}  // namespace longshore
