/** For editors and the type check only: the types of the bundle beside this file. */
export { default } from "../../clients/typescript/node_modules/uplot/dist/uPlot.js";
