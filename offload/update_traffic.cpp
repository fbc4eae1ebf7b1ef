#include "offload/update_traffic.h"

namespace longshore {

UpdateTraffic update_traffic(const StateOptions& options) {
  UpdateTraffic traffic;
  for (Region region : kRegions) {
    const Bytes bytes = element_bytes(options, Segment::kQuantisedMoments, region);
    traffic.read += bytes;
    if (region != Region::kGradient) traffic.written += bytes;
  }
  return traffic;
}

}  // namespace longshore
