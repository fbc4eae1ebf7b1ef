#include "offload/optimizer/update_traffic.h"

namespace longshore {

UpdateTraffic update_traffic(const StateOptions& options, Segment segment, int64_t elements) {
  UpdateTraffic traffic;
  for (Region region : kRegions) {
    const Bytes bytes = region_bytes(options, segment, region, elements);
    const bool write_only = region == Region::kHigh && !splits_master(options.format);
    if (!write_only) traffic.read += bytes;
    traffic.written += bytes;
  }
  traffic.read += width_of(options.drain) * elements;  // the gradient
  return traffic;
}

}  // namespace longshore
