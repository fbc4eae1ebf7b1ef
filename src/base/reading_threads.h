// Threads for work that mostly waits for drives. A drive reaches its speed only with many reads in
// flight, more than there are cores: while some threads copy or check what they read, the others
// keep the drive busy. Any thread may call, several at once.
#pragma once

#include <cstdint>
#include <functional>

namespace longshore {

// The number of reads in flight, each of about a MiB.
inline constexpr int kReadingThreads = 16;

// Calls work(i) once for every i in [0, count), in about this order, on kReadingThreads threads
// that end with the call, and returns when all are done. Rethrows the first exception; work that
// has not begun by then is left out.
void on_reading_threads(int64_t count, const std::function<void(int64_t)>& work);

}  // namespace longshore
