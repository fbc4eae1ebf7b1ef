// TrackerProcess: sends the record of a run to W&B while the run goes on (log.wandb), with
// scripts/follow_metrics as a process of its own. Rank 0 owns one from the run's first step to its
// end; main thread. A thread of its own waits for the process, which ends with it. Whatever happens
// to the process is a warning.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace longshore {

class TrackerProcess {
 public:
  // Starts to follow the run in `directory`, whose run.json says that it runs.
  TrackerProcess(const std::string& directory, const std::string& project);
  TrackerProcess(const TrackerProcess&) = delete;
  TrackerProcess& operator=(const TrackerProcess&) = delete;
  // Waits until the process has sent the last lines: it ends by itself once run.json says that the
  // run has ended. It is killed after a minute.
  ~TrackerProcess();

 private:
  void follow(const std::string& directory, const std::string& project);
  bool gives_up() const;

  std::atomic<int64_t> deadline_{0};  // ticks of the steady clock; 0: none
  std::thread thread_;                // last: it uses the others
};

}  // namespace longshore
