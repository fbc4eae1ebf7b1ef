#include "nvme/probe/fio_reference.h"

#include <unistd.h>

#include <cmath>
#include <vector>

#include "base/child_process.h"
#include "base/json.h"

namespace longshore {
namespace {

constexpr JsonLimits kLimits = {.max_bytes = kMiB};

}  // namespace

bool fio_is_installed() {
  return run_child({"fio", "--version"}).good();
}

std::optional<DriveSpeed> measure_fio(const std::string& path, BlockOp::Kind kind,
                                      const std::string& engine, const DriveSettings& settings,
                                      double seconds) {
  const std::string direction(name_of(kind));
  const std::string output = path + ".fio.json";
  std::vector<std::string> arguments = {
      "fio",
      "--name=longshore",
      "--filename=" + path,
      "--direct=1",
      "--ioengine=" + engine,
      "--rw=" + direction,
      "--bs=" + std::to_string(settings.chunk_bytes),
      "--iodepth=" + std::to_string(settings.depth),
      "--time_based",
      "--runtime=" + std::to_string(static_cast<int64_t>(std::ceil(seconds * 1000))) + "ms",
      "--output-format=json",
      "--output=" + output};
  if (engine == "io_uring") {
    arguments.insert(arguments.end(), {"--fixedbufs=1", "--registerfiles=1"});
  }
  if (kind == BlockOp::Kind::kWrite) arguments.push_back("--end_fsync=1");
  std::optional<DriveSpeed> speed;
  if (run_child(arguments).good()) {
    try {
      const Json job = read_json_file(output, kLimits).at("jobs").at(0);
      const double rate = job.at(direction).at("bw_bytes").get<double>() * 1e-9;
      const double percent = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
      if (rate > 0.0) speed = DriveSpeed{rate, percent / rate};
    } catch (const std::exception&) {
      speed.reset();  // a release with another format counts as a failure
    }
  }
  unlink(output.c_str());
  return speed;
}

}  // namespace longshore
