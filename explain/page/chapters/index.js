// The chapters, in order.
import {chapter as ring} from "./ring.js";

export const chapters = [ring];
