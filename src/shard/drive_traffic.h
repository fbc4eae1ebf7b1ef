// DriveTraffic: the bytes that a rank moves between memory and drives. Plain value.
#pragma once

#include "base/bytes.h"

namespace longshore {

struct DriveTraffic {
  Bytes read = 0;
  Bytes written = 0;
  DriveTraffic& operator+=(const DriveTraffic& other) {
    read += other.read;
    written += other.written;
    return *this;
  }
};

}  // namespace longshore
