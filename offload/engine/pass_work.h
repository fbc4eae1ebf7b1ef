// PassWork: what the operations of a schedule do with the engine's parts. Owned by the engine;
// called by the lanes.
#pragma once

#include "offload/engine/engine_device.h"
#include "offload/engine/input_offload.h"
#include "offload/engine/step_commit.h"
#include "offload/engine/unit_runner.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "offload/schedule/step_executor.h"
#include "offload/staging/grad_drain.h"
#include "offload/staging/grad_reducer.h"
#include "offload/staging/gradient_home.h"
#include "offload/staging/prefetcher.h"
#include "shard/place_holders.h"

namespace longshore {

class PassWork final : public StepWork {
 public:
  struct Parts {
    const EngineDevice* device = nullptr;
    ShardStore* store = nullptr;
    StepCommit* commit = nullptr;
    StageRing* ring = nullptr;
    Prefetcher* prefetcher = nullptr;
    UnitRunner* runner = nullptr;
    GradReducer* reducer = nullptr;
    GradDrain* drain = nullptr;
    OptimizerPipeline* optimizer = nullptr;
    GradientHome* gradient_home = nullptr;
    InputOffload* inputs = nullptr;  // null: inputs stay on the device
    NodeShards* node = nullptr;      // null: nobody else reads the rank's parameters
    const ModelSpec* model = nullptr;
    int32_t gradient_buffers = 1;
    // Gradients are applied before the norm of all is known: one that is not finite ends the run.
    bool updates_in_backward = false;
  };
  // All parts must outlive the work.
  explicit PassWork(const Parts& parts)
      : parts_(parts),
        gradients_("gradient buffer", parts.gradient_buffers),
        staging_("staging slot", kInputStagingSlots) {}

  void run(const Op& op) override;

 private:
  void update(const Op& op);
  void move_input(const Op& op);
  void compute(const Op& op);
  void reduce(const Op& op);
  void drain(const Op& op);

  Parts parts_;
  PlaceHolders gradients_;  // the device's gradient buffers
  PlaceHolders staging_;    // slots of inputs on their way to drives and back
};

}  // namespace longshore
