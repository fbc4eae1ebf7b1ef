#include "tests/fakes/cpu_branches.h"

namespace longshore::fakes {

CpuBranches::CpuBranches() = default;
CpuBranches::~CpuBranches() = default;

}  // namespace longshore::fakes
