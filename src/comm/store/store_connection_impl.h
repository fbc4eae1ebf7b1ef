// What a StoreConnection holds, for the transports that take the store itself. Theirs and the
// connection's calls may come from different threads: the store lets them wait for each other.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/store/store.h"

namespace longshore {

struct StoreConnection::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

}  // namespace longshore
