// What fio gets on the same file, where it is installed: the figure to compare ours with.
#pragma once

#include <optional>
#include <string>

#include "nvme/probe/drive_probe.h"

namespace longshore {

bool fio_is_installed();

// One run of fio with `engine` ("io_uring", "libaio") and our block size and depth; io_uring with
// registered buffers and files. Nothing where fio fails or has no such engine.
std::optional<DriveSpeed> measure_fio(const std::string& path, BlockOp::Kind kind,
                                      const std::string& engine, const DriveSettings& settings,
                                      double seconds);

}  // namespace longshore
