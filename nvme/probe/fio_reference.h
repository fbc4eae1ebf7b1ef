// FioReference: fio's speed on the same file, if it is installed, for comparison with ours.
#pragma once

#include <optional>
#include <string>

#include "nvme/probe/drive_probe.h"

namespace longshore {

bool fio_is_installed();

// Runs fio once with `engine` ("io_uring", "libaio") and our chunk size and depth; io_uring uses
// registered buffers and files. Returns nullopt if fio fails or lacks the engine.
std::optional<DriveSpeed> measure_fio(const std::string& path, BlockOp::Kind kind,
                                      const std::string& engine, const DriveSettings& settings,
                                      double seconds);

}  // namespace longshore
