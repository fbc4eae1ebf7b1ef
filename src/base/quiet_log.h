// QuietLog: only errors are logged while it lives. One thread.
#pragma once

#include "base/log.h"

namespace longshore {

class QuietLog {
 public:
  QuietLog() : before_(set_log_level(LogLevel::kError)) {}
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
  ~QuietLog() { set_log_level(before_); }

 private:
  LogLevel before_;
};

}  // namespace longshore
