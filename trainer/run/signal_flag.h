// SignalFlag: what the user asks of a running process by signals and by a file, as flags that are
// polled. Handlers only set flags.
//
//   SIGTERM, SIGHUP, SIGUSR1, first SIGINT   finish the step, save, exit with 128 + signal
//   second SIGINT                            exit at once with code 9, nothing more is saved
//   SIGUSR2, or the save file                save and go on
//   SIGHUP where it was ignored (nohup)      nothing
//   SIGPIPE                                  nothing: who read the output is gone, the run is not
//
// Owned by the run, one at a time in a process: the constructor installs the handlers, the
// destructor puts the former ones back. Any thread may ask for the stop signal; requests to save
// are taken by the owner's thread.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace longshore {

// Whether the process says at once, on stderr, what a stop signal sets off.
enum class Announce : uint8_t { kNo, kYes };

// What it says while this lives instead of its words on a run that steps. Of the owner's thread;
// `text` outlives it.
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
  // `save_file`: the path whose appearance asks for a save; empty for none.
  explicit SignalFlag(std::string save_file = "", Announce announce = Announce::kNo);
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;
  ~SignalFlag();

  // The first stop signal that came, 0 while there is none.
  int stop_signal() const;
  bool stop_requested() const { return stop_signal() != 0; }
  // The exit code of a run that stopped for it and saved.
  int stop_exit_code() const { return 128 + stop_signal(); }

  // "SIGTERM"; empty while there is none.
  std::string stop_name() const;
  // "stopped by SIGTERM", or by a signal to another rank.
  std::string stop_text() const;

  // What a second SIGINT leaves in the file, which exists; nothing where either is too long.
  void set_last_words(const std::string& path, const std::string& text);

  // True once for each request to save; removes the save file.
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

// Ends the process when a stop signal is not heeded in time. For work that may be cut off at any
// moment and continues later, such as preparing data: most of it stops by itself, but no library
// asks in the middle of a long text. Its own thread ends the process.
class HurriedStop {
 public:
  explicit HurriedStop(const SignalFlag& signals);

 private:
  OtherAnnouncement announcement_;
  std::jthread thread_;
};

}  // namespace longshore
