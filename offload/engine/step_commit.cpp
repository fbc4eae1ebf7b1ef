#include "offload/engine/step_commit.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/errors.h"

namespace longshore {

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
  if (!point) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  done_ = CommittedStep{*point, took.count()};
}

}  // namespace longshore
