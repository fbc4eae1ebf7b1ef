#include "offload/engine/tiers.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/errors.h"
#include "base/measurement.h"
#include "nvme/store/nvme_inputs.h"
#include "nvme/store/nvme_store.h"
#include "nvme/store/state_file.h"
#include "pinned/frozen_file_store.h"
#include "pinned/pinned_store.h"

namespace longshore {
namespace {

MakeDrives drive_opener(const TierRequest& request, StateFile file) {
  const StateFileOptions options = {.directories = request.plan.drives.tier.directories,
                                    .rank = request.rank.value,
                                    .file = file,
                                    .depth = request.plan.drives.tier.depth};
  return [options](const StripeMap& map, std::span<std::byte> window) {
    return open_state_files(options, map, window);
  };
}

void make_state(const TierRequest& request, Tiers& tiers) {
  const TierPlan& plan = request.plan;
  const bool registers = plan.host.pinned.state;
  if (plan.frozen_in_files) {
    LONGSHORE_CHECK(request.frozen != nullptr) << "the plan reads frozen parameters from files";
    auto store = std::make_unique<FrozenFileStore>(request.model, request.layouts,
                                                   plan.step.resident, plan.state, request.shard,
                                                   registers, request.frozen, request.pool);
    tiers.slots = store.get();
    tiers.state = std::move(store);
    return;
  }
  if (!plan.drives.tier.state) {
    const bool shared = plan.gather == GatherMode::kHost;
    auto store =
        std::make_unique<PinnedStore>(request.layouts, plan.state, registers, request.pool, shared);
    if (shared) tiers.shared = store.get();
    tiers.state = std::move(store);
    return;
  }
  NvmeStoreOptions options =
      nvme_options(plan.drives.tier, plan.state, plan.topology, request.rank, request.run);
  options.register_with_gpus = registers;
  auto store = std::make_unique<NvmeStore>(request.layouts, options,
                                           drive_opener(request, StateFile::kState), request.pool);
  tiers.slots = store.get();
  tiers.durable = store.get();
  tiers.state = std::move(store);
}

std::unique_ptr<InputTier> make_inputs(const TierRequest& request) {
  const TierPlan& plan = request.plan;
  const bool registers = plan.host.pinned.inputs;
  if (plan.host.inputs == 0) return nullptr;
  if (!plan.drives.tier.inputs) {
    return std::make_unique<HostInputs>(plan.step.offloaded_inputs, plan.step.micro_batches,
                                        registers, *request.pool);
  }
  NvmeInputOptions options = nvme_input_options(plan.drives.tier, plan.step.schedules.train,
                                                plan.step.micro_batches, request.rank);
  options.register_with_gpus = registers;
  return std::make_unique<NvmeInputs>(options, drive_opener(request, StateFile::kInputs),
                                      request.pool);
}

}  // namespace

Tiers make_tiers(const TierRequest& request) {
  Tiers tiers;
  make_state(request, tiers);
  tiers.inputs = make_inputs(request);
  return tiers;
}

MakeTiers make_tiers_over(const FrozenSource* frozen) {
  return [frozen](TierRequest request) {
    request.frozen = frozen;
    return make_tiers(request);
  };
}

Outcome CommAgreement::reduce(const Ballot& mine) {
  Outcome outcome{mine, mine};
  if (all_ == nullptr) return outcome;
  std::vector<Ballot> ballots(static_cast<size_t>(all_->size()));
  ballots[static_cast<size_t>(all_->index())] = mine;
  all_->all_gather({std::as_writable_bytes(std::span(ballots))}, {"the commit", std::nullopt})
      .wait();
  for (const Ballot& ballot : ballots) {
    for (size_t i = 0; i < ballot.size(); ++i) {
      outcome.least[i] = std::min(outcome.least[i], ballot[i]);
      outcome.greatest[i] = std::max(outcome.greatest[i], ballot[i]);
    }
  }
  return outcome;
}

void StepCommit::stage(const DurableStep& record) {
  LONGSHORE_CHECK(commits()) << "the tier commits nothing";
  LONGSHORE_CHECK(!staged_) << "step " << staged_->step << " is not committed yet";
  staged_ = record;
}

void StepCommit::run() {
  if (!staged_) return;
  const auto begin = std::chrono::steady_clock::now();
  store_->commit(*staged_, agreement_);
  staged_.reset();
  const std::optional<DurablePoint> point = store_->committed();
  if (point) done_ = CommittedStep{*point, seconds_since(begin)};
}

}  // namespace longshore
