#include "tests/fakes/cpu_branches.h"

namespace longshore::fakes {

CpuBranches::CpuBranches() = default;
CpuBranches::~CpuBranches() = default;

struct ShapesOnly::Products {};
ShapesOnly::ShapesOnly() = default;
ShapesOnly::~ShapesOnly() = default;

}  // namespace longshore::fakes
