// SignalFlag: the user's requests to a running process, by signals or by a file, as polled flags.
//
//   SIGTERM, SIGHUP, SIGUSR1, first SIGINT   finish the step, save, exit with 128 + signal
//   second SIGINT                            exit at once with code 9, nothing more is saved
//   SIGUSR2, or the save file                save and continue
//   SIGHUP if it was ignored (nohup)         nothing
//   SIGPIPE                                  nothing: the run needs no reader of its output
//
// Owned by the run, one at a time in a process: the constructor installs the handlers, the
// destructor restores the former ones. Any thread may read the stop signal; only the owner's thread
// takes requests to save.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace longshore {

// Whether a stop signal prints its effect on stderr at once.
enum class Announce : uint8_t { kNo, kYes };

// Replaces the text that a stop signal prints, during its lifetime. `text` must outlive it. The
// owner's thread makes and destroys it.
class OtherAnnouncement {
 public:
  explicit OtherAnnouncement(const char* text);
  OtherAnnouncement(const OtherAnnouncement&) = delete;
  OtherAnnouncement& operator=(const OtherAnnouncement&) = delete;
  ~OtherAnnouncement();

 private:
  const char* former_;
};

class SignalFlag {
 public:
  // A file that appears at `save_file` requests a save; empty: no such file.
  explicit SignalFlag(std::string save_file = "", Announce announce = Announce::kNo);
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;
  ~SignalFlag();

  // Returns the first stop signal; 0 before any.
  int stop_signal() const;
  bool stop_requested() const { return stop_signal() != 0; }
  // Returns the exit code of a run that saved and stopped for the signal.
  int stop_exit_code() const { return 128 + stop_signal(); }

  // Returns the text that a stop signal would print now.
  static std::string_view announcement();

  // Returns the signal's name, such as "SIGTERM"; empty before any.
  std::string stop_name() const;
  // Returns "stopped by SIGTERM", or "stopped by a signal to another rank".
  std::string stop_text() const;

  // Sets the text that a second SIGINT writes to the existing file; none if either is too long.
  void set_last_words(const std::string& path, const std::string& text);

  // Returns true once for each request to save, and removes the save file.
  bool take_save_request();

 private:
  struct Former {
    int signal = 0;
    struct sigaction action{};
  };
  bool take_save_file();

  std::string save_file_;
  std::vector<Former> former_;
};

// A thread that ends the process if work does not stop soon after a stop signal. It is for work
// that may be interrupted at any moment, such as preparing data, most of which checks for stop
// signals, but not libraries in the middle of a long text.
class HurriedStop {
 public:
  explicit HurriedStop(const SignalFlag& signals);

 private:
  OtherAnnouncement announcement_;
  std::jthread thread_;
};

}  // namespace longshore
