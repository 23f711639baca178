// Everything that rondo offers to C++.
#pragma once

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "rondo/log.hpp"
#include "rondo/memory.hpp"
#include "rondo/status.hpp"
#include "rondo/types.hpp"
