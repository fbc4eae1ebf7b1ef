// counting_allocator: once a WorkspaceBudget was made, every CPU allocation of LibTorch goes
// through it and counts against the budget in force. Without a budget it only aligns to 64 bytes.
// Memory may outlive its budget: each block remembers the meter that counted it.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <string>
#include <string_view>

#include "device/device_memory.h"

namespace longshore {

// While it lives, LibTorch's CPU memory counts as `memory`'s workspace for all threads, and going
// over the cap throws OutOfMemoryError out of the LibTorch call. Its destructor restores the
// previous budget, so budgets must end in reverse order. One thread makes and ends them.
class WorkspaceBudget {
 public:
  explicit WorkspaceBudget(const DeviceMemory& memory);
  WorkspaceBudget(const WorkspaceBudget&) = delete;
  WorkspaceBudget& operator=(const WorkspaceBudget&) = delete;
  ~WorkspaceBudget();

 private:
  std::shared_ptr<WorkspaceMeter> mine_;
  std::shared_ptr<WorkspaceMeter> before_;
};

// While it lives, this thread's allocations are booked under `label` ("block.3 backward"). Inner
// labels replace outer ones. It costs a look-up: use one per unit, not one per tensor.
class WorkspaceLabel {
 public:
  explicit WorkspaceLabel(std::string_view label);
  WorkspaceLabel(const WorkspaceLabel&) = delete;
  WorkspaceLabel& operator=(const WorkspaceLabel&) = delete;
  ~WorkspaceLabel();

 private:
  std::shared_ptr<WorkspaceMeter> meter_before_;
  WorkspaceMeter::Account* account_before_;
};

// Returns this thread's label. A thread without one (LibTorch's own threads run a GPU's backward)
// gets the last label that any thread set, or "unlabelled" if no thread set one.
std::string current_workspace_label();

// Returns the allocator as LibTorch sees it; it lives as long as the process.
c10::Allocator& counting_allocator();

}  // namespace longshore
