#include "trainer/setup/units_choice.h"

#include <array>
#include <string>
#include <utility>

#include "base/log.h"
#include "nvme/store/state_files.h"
#include "trainer/setup/measure_workspace.h"

namespace longshore {
namespace {

// From the coarsest.
constexpr std::array kCuts = {UnitsChoice::Kind::kBlock, UnitsChoice::Kind::kHalf,
                              UnitsChoice::Kind::kPiece};

std::shared_ptr<const Model> cut_model(const RunSetup& setup, UnitsChoice::Kind kind) {
  UnitsChoice units;
  units.kind = kind;
  return setup.source->in_units(units);
}

void take(RunSetup& setup, UnitsChoice::Kind kind) {
  setup.source->choose(cut_model(setup, kind));
  setup.inputs.model = &setup.source->spec();
}

// What every rank says is so.
bool everywhere(const RunSetup& setup, const std::string& what, bool mine) {
  if (!setup.ranks) return mine;
  for (const std::string& answer : setup.ranks->world().exchange(what, mine ? "yes" : "no")) {
    if (answer != "yes") return false;
  }
  return true;
}

// Whether the state on this rank's first drive was made for these units.
bool drive_holds(const RunSetup& setup, const ModelSpec& model) {
  NvmeTier tier = setup.inputs.nvme;
  const Rank rank = setup.ranks ? setup.ranks->rank() : Rank(0);
  const auto made = read_state_file(tier.directories.front(), rank.value).manifest;
  if (!made || made->drives != static_cast<int32_t>(tier.directories.size())) return false;
  tier.geometry = made->geometry;
  const PlanInputs& inputs = setup.inputs;
  const NvmeStoreOptions options = nvme_options(tier, inputs.state, inputs.topology, rank, {});
  const auto layouts = make_layouts(model, inputs.topology.shard_ranks);
  return NvmeStore::make_map(layouts, options).layout_hash() == made->layout_hash;
}

// The one that the drives hold, measured.
bool take_held(RunSetup& setup) {
  if (!setup.inputs.nvme.state || setup.config.checkpoint.resume != "auto") return false;
  for (const UnitsChoice::Kind kind : kCuts) {
    const bool mine = drive_holds(setup, cut_model(setup, kind)->spec());
    if (!everywhere(setup, "the units on drives", mine)) continue;
    take(setup, kind);
    measure_workspace(setup);
    return true;
  }
  return false;
}

// Measured too; the last where none fits.
UnitsChoice::Kind take_coarsest(RunSetup& setup) {
  for (const UnitsChoice::Kind kind : kCuts) {
    take(setup, kind);
    measure_workspace(setup);
    const bool mine = draft_tier_plan(setup.inputs, setup.machine).fits();
    if (everywhere(setup, "whether the units fit", mine)) return kind;
  }
  return kCuts.back();
}

}  // namespace

void settle_units(RunSetup& setup) {
  if (setup.config.fsdp.units.kind != UnitsChoice::Kind::kAuto) {
    measure_workspace(setup);
  } else if (!take_held(setup)) {
    const UnitsChoice::Kind kind = take_coarsest(setup);
    if (kind != kCuts.front() && (!setup.ranks || setup.ranks->first())) {
      log_info("fsdp.units: \"" + std::string(name_of(kind)) + "\", because blocks do not fit");
    }
  }
  setup.inputs.units.clear();
  std::vector<OtherUnits>& others = setup.inputs.other_units;
  for (const UnitsChoice::Kind kind : kCuts) {
    const std::shared_ptr<const Model> other = cut_model(setup, kind);
    const std::string name = '"' + std::string(name_of(kind)) + '"';
    if (other->spec() == *setup.inputs.model) {
      if (setup.inputs.units.empty()) setup.inputs.units = name;
      continue;
    }
    // Tables that are small enough already have no pieces.
    if (!others.empty() && *others.back().model == other->spec()) continue;
    others.push_back(
        {.name = name, .model = {other, &other->spec()}, .costs = costs_when_asked(setup, other)});
  }
  if (setup.inputs.units.empty()) setup.inputs.units = "a table";
}

}  // namespace longshore
