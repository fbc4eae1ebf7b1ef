// Arguments of a run that keeps a part of its frozen model in host memory and reads the rest from
// its files. Test code.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"

namespace longshore {

// Adds the amount of host memory in which a part of the frozen model of `run`, which has ended, is
// resident beside the rest of the plan. Half of it would do for all of it, since a small model
// needs less than its slots where nothing is read.
inline Arguments partly_resident(const RunDriver& run, const Arguments& all, int ranks = 1) {
  const std::string config = run.directory() + "/config.toml";
  const auto plan = [&](const std::string& memory) {
    const std::string count = std::to_string(ranks);
    return run_command({"plan", config, "--json", "--ranks", count, "--ranks-per-node", count,
                        "--offload.parameters=files", "--offload.host_memory=" + memory});
  };
  const Json whole = Json::parse(plan("auto").out).at("host");
  const int64_t resident = whole.at("resident_frozen_bytes").get<int64_t>();
  EXPECT_GT(resident, 0);
  // A plan that does not fit has no resident units.
  const Json refused = Json::parse(plan("1MiB").out).at("host");
  EXPECT_EQ(refused.at("resident_frozen_bytes"), 0);
  const int64_t least = refused.at("total_bytes").get<int64_t>();
  return joined(all, {"--offload.parameters=files",
                      "--offload.host_memory=" + std::to_string(least + resident / 4) + "B"});
}

}  // namespace longshore
