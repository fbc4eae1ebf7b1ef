// Collectives over a Transport: every rank of the group exchanges with every other directly. A
// reduction sends each rank the values of its part and adds them there, in the order of ranks; that
// is half the traffic of an all-reduce. Blocking functions; a communicator's thread calls them.
//
// [Note: tags] The tag of an operation's messages is a hash of its sequence number and description,
// so that messages of different operations never match. Ranks that disagree wait, and the watchdog
// reports why. Messages with one tag between two ranks keep their order.
#pragma once

#include <cstdint>

#include "comm/collectives/transport.h"
#include "comm/operations/communicator.h"

namespace longshore {

// One operation of a rank: the group's transport, the rank's index in the group, the group's size
// and the tag of the operation's first message.
struct Exchange {
  Transport* transport = nullptr;
  int32_t index = 0;
  int32_t size = 1;
  uint32_t tag = 0;
};

// These functions do the operations of Communicator (comm/operations/communicator.h), which says
// what segments, wire dtype and scratch are; `meet` is its barrier.
void all_gather_bytes(Exchange exchange, const Communicator::Segments& segments);
void reduce_scatter_sums(Exchange exchange, const Communicator::FloatSegments& segments, DType wire,
                         std::span<std::byte> scratch);
void all_reduce_sums(Exchange exchange, const Communicator::FloatSegments& segments, DType wire,
                     std::span<std::byte> scratch);
void all_reduce_scalars(Exchange exchange, std::span<double> values);
void broadcast_bytes(Exchange exchange, std::span<std::byte> bytes, int32_t root);
void meet(Exchange exchange);

}  // namespace longshore
