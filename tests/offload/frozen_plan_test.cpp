// The plan of a frozen model in its own files.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/forecast/plan_search.h"
#include "offload/plan/host_plan.h"
#include "offload/plan/plan_text.h"
#include "offload/plan/tier_plan.h"
#include "pinned/frozen_file_store.h"
#include "pinned/pinned_store.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

Bytes trained_bytes(std::vector<FlatLayout> layouts, const StateOptions& state) {
  std::ranges::transform(layouts, layouts.begin(), &FlatLayout::without_frozen);
  return PinnedStore::planned_bytes(layouts, state);
}

// Frozen parameters in the model's files leave the trained state and two slots in host memory; a
// step reads them for every fetch, in the dtype of the files.
TEST(FrozenPlan, CountsSlotsAndReadsOfTheFiles) {
  ModelSpec model = fakes::make_small_model(5, false);
  Bytes stored = 0;
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) parameter.frozen = true;
    stored += 4 * unit.parameters.front().elements();
    for (const ParamSpec& parameter : std::span(unit.parameters).subspan(1)) {
      stored += 2 * parameter.elements();
    }
    unit.parameters.push_back(fakes::make_parameter(unit.name + ".adapter", {64, 8}));
  }
  PlanInputs inputs = made_up_inputs(model);
  inputs.prefetch = 0;
  const TierPlan host = draft_tier_plan(inputs, made_up_machine());
  FrozenFiles files;
  for (const UnitSpec& unit : model.units) files[unit.parameters.front().name] = DType::kF32;
  inputs.frozen_files = std::make_shared<const FrozenFiles>(std::move(files));
  inputs.fill_host = false;
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  EXPECT_TRUE(plan.frozen_in_files);
  EXPECT_EQ(plan.device.owned, host.device.owned);
  EXPECT_EQ(plan.step.traffic.h2d, host.step.traffic.h2d);
  EXPECT_EQ(plan.step.traffic.nvme_read, 0);
  EXPECT_EQ(plan.step.traffic.nvme_written, 0);
  EXPECT_EQ(plan.host.gradients, host.host.gradients);
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, inputs.state.compute);
  EXPECT_EQ(plan.host.arena, trained_bytes(layouts, inputs.state) +
                                 FrozenFileStore::planned_slot_bytes(layouts, {}));
  EXPECT_EQ(host.host.total - plan.host.total, host.host.arena - plan.host.arena);
  Bytes forward = 0;
  for (const Op& op : plan.step.schedules.forward.ops) {
    if (op.kind == OpKind::kReadParameters) forward += op.bytes;
  }
  EXPECT_EQ(forward, stored);
  EXPECT_GT(plan.step.traffic.files_read, stored);
  const std::string text = format_plan(plan, made_up_machine());
  EXPECT_NE(text.find("read from model files " + format_bytes(plan.step.traffic.files_read)),
            std::string::npos);
  EXPECT_EQ(text.find("nvme:"), std::string::npos);
  inputs.topology = {.ranks = 2, .shard_ranks = 2};
  inputs.ranks_per_node = 2;
  EXPECT_NE(why_not_on_host(inputs).find("offload.parameters"), std::string::npos);
}

// Adapters over five blocks that are frozen.
ModelSpec model_with_base() {
  ModelSpec model = fakes::make_small_model(5, false);
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) parameter.frozen = true;
    unit.parameters.push_back(fakes::make_parameter(unit.name + ".adapter", {64, 8}));
  }
  return model;
}

// A cap is filled with frozen parameters until no further unit fits, and only the others are read
// in a step. Free memory keeps a tenth. Without reads there are no slots, whose two blocks count as
// room then.
TEST(FrozenPlan, FillsHostMemoryWithResidentUnits) {
  const ModelSpec model = model_with_base();
  PlanInputs inputs = made_up_inputs(model);
  inputs.prefetch = 0;
  inputs.frozen_files = std::make_shared<const FrozenFiles>();
  inputs.fill_host = false;
  const TierPlan none = draft_tier_plan(inputs, made_up_machine());
  inputs.fill_host = true;
  const std::vector<FlatLayout> layouts = make_layouts(model, 1, inputs.state.compute);
  Bytes all = 0;
  for (const FlatLayout& layout : layouts) {
    all += FrozenFileStore::planned_resident_bytes(layout);
  }
  const Bytes block = FrozenFileStore::planned_resident_bytes(layouts[2]);
  Bytes before = none.step.traffic.files_read;
  for (const Bytes room : {2 * block, 2 * block + 1, all / 2, all - 2 * block - 1}) {
    inputs.host_cap = none.host.total + room;
    const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
    EXPECT_TRUE(plan.fits()) << room;
    EXPECT_GT(plan.host.resident, room - block) << room;
    EXPECT_LE(plan.host.resident, room) << room;
    Bytes read = 0;
    for (const Op& op : none.step.schedules.train.ops) {
      const bool kept = plan.step.resident[static_cast<size_t>(op.unit.value)];
      if (op.kind == OpKind::kReadParameters && !kept) read += op.bytes;
    }
    EXPECT_EQ(plan.step.traffic.files_read, read) << room;
    EXPECT_LE(read, before) << room;
    before = read;
    EXPECT_NE(format_plan(plan, made_up_machine())
                  .find(format_bytes(plan.host.resident) + " of them stay in host memory"),
              std::string::npos);
  }
  inputs.host_cap.reset();
  const TierPlan whole = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(whole.host.resident, all);
  EXPECT_EQ(whole.step.traffic.files_read, 0);
  EXPECT_EQ(whole.host.arena, trained_bytes(layouts, inputs.state) + all);
  const Bytes tight = (none.host.total + all / 2) * 10 / 9;
  const TierPlan part = draft_tier_plan(inputs, made_up_machine(tight));
  EXPECT_GT(part.host.resident, 0);
  EXPECT_LE(part.host.total, tight - tight / 10);
}

// Units that a step reads twice stay before those that it reads once, and reads alternate with
// resident units as evenly as the room allows.
TEST(FrozenPlan, SpreadsResidentUnitsEvenly) {
  const std::vector<ResidentUnit> equal(8, {.bytes = 10, .reads = 2});
  const auto text = [](const std::vector<bool>& resident) {
    std::string marks;
    for (const bool kept : resident) marks += kept ? 'r' : '.';
    return marks;
  };
  EXPECT_EQ(text(spread_resident(equal, 9)), "........");
  EXPECT_EQ(text(spread_resident(equal, 40)), "r.r.r.r.");
  EXPECT_EQ(text(spread_resident(equal, 49)), "r.r.r.r.");
  EXPECT_EQ(text(spread_resident(equal, 20)), ".r...r..");
  EXPECT_EQ(text(spread_resident(equal, 80)), "rrrrrrrr");
  std::vector<ResidentUnit> mixed = equal;
  mixed.front() = mixed.back() = {.bytes = 30, .reads = 1};
  mixed[3] = {};
  EXPECT_EQ(text(spread_resident(mixed, 30)), ".r..r.r.");
  EXPECT_EQ(text(spread_resident(mixed, 89)), "rrr.rrr.");
}

// A plan that does not fit names the model's own files where the run could read from them, with
// the bytes that this frees; a search tries them too.
TEST(FrozenPlan, IsProposedWhereHostMemoryIsTooSmall) {
  const ModelSpec model = model_with_base();
  PlanInputs inputs = made_up_inputs(model);
  const TierPlan host = draft_tier_plan(inputs, made_up_machine());
  inputs.host_cap = host.host.total - 1;
  EXPECT_EQ(explain_misfit(inputs, made_up_machine()).find("\"files\""), std::string::npos);
  inputs.model_files = std::make_shared<const FrozenFiles>();
  PlanInputs files = inputs;
  files.frozen_files = files.model_files;
  files.fill_host = false;
  const Bytes least = draft_tier_plan(files, made_up_machine()).host.total;
  const std::string said = explain_misfit(inputs, made_up_machine());
  EXPECT_NE(said.find("offload.parameters = \"files\" (now \"host\") saves " +
                      format_bytes(host.host.total - least) + ", enough alone"),
            std::string::npos)
      << said;
  const auto proposes = [](const PlanInputs& of, const std::string& value) {
    for (const SearchAxis& axis : search_axes(of, {})) {
      for (const KeyChange& change : axis) {
        if (change.key == "offload.parameters" && change.value == value) return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(proposes(inputs, "\"files\""));
  EXPECT_TRUE(proposes(files, "\"host\""));
  inputs.model_files = nullptr;
  EXPECT_FALSE(proposes(inputs, "\"files\""));
}

// A packed model that the files hold in the same form can stay there; one that is packed while it
// is loaded cannot.
TEST(FrozenPlan, IsProposedForModelsThatArePackedAsPublished) {
  const ModelSpec model = model_with_base();
  PlanInputs inputs = made_up_inputs(model);
  inputs.frozen_files = std::make_shared<const FrozenFiles>();
  inputs.keep_frozen = true;
  inputs.host_cap = draft_tier_plan(inputs, made_up_machine()).host.total - 1;
  const std::string change = "offload.parameters = \"files\" (now \"host\") saves";
  EXPECT_EQ(explain_misfit(inputs, made_up_machine()).find(change), std::string::npos);
  inputs.model_files = inputs.frozen_files;
  EXPECT_NE(explain_misfit(inputs, made_up_machine()).find(change), std::string::npos);
}

}  // namespace
}  // namespace longshore
