// HurriedStop: ends the process when a stop signal is not heeded in time. For work that may be cut
// off at any moment and goes on later, such as preparing data: most of it stops by itself, but no
// library asks in the middle of a long text. Owned by whoever does such work; has a thread of its
// own, which ends the process.
#pragma once

#include <thread>

#include "trainer/run/signal_flag.h"

namespace longshore {

class HurriedStop {
 public:
  explicit HurriedStop(const SignalFlag& signals);

 private:
  OtherAnnouncement announcement_;
  std::jthread thread_;
};

}  // namespace longshore
